-- Replies a small run, as it is at this moment: {its fields, now (ms), number of its parts, states, names, specs, outputs, infos, blobs}, each hash as
-- {field, value, ...}; {} if it is not kept, or larger.
-- ARGV: run, most steps, most bytes of its request, specs, outputs and infos.
use(ARGV[1])
if not status or redis.call('HLEN', R .. ':steps') > tonumber(ARGV[2]) then return {} end
local left = tonumber(ARGV[3]) - tonumber(meta('bytes'))
for _, part in ipairs({':steps', ':out'}) do -- specs, and the values of signals, are not among the bytes of a run
  for _, step in ipairs(redis.call('HKEYS', R .. part)) do
    if left < 0 then return {} end
    left = left - redis.call('HSTRLEN', R .. part, step)
  end
end
if left < 0 then return {} end
local reply = {redis.call('HGETALL', R), string.format('%d', now), count_parts(R)}
for _, part in ipairs({':state', ':names', ':steps', ':out', ':info', ':blobs'}) do reply[#reply + 1] = redis.call('HGETALL', R .. part) end
return reply
