-- Replies a small run, as it is at this moment: {its fields, now (ms), number of its parts, states, names, specs, outputs, infos, blobs}, each hash as
-- {field, value, ...}; {} if it is not kept, or larger.
-- ARGV: run, most steps, most bytes of its request, specs, outputs and infos.
use(ARGV[1])
if not status or redis.call('HLEN', R .. ':steps') > tonumber(ARGV[2]) then return {} end
local bytes = tonumber(meta('bytes'))
for _, part in ipairs({':steps', ':out'}) do -- specs, and the values of signals, are not among the bytes of a run
  bytes = bytes + (redis.call('MEMORY', 'USAGE', R .. part, 'SAMPLES', 0) or 0)
end
if bytes > tonumber(ARGV[3]) then return {} end
local reply = {redis.call('HGETALL', R), string.format('%d', now), count_parts(R)}
for _, part in ipairs({':state', ':names', ':steps', ':out', ':info', ':blobs'}) do reply[#reply + 1] = redis.call('HGETALL', R .. part) end
return reply
