-- Replies a small run, as it is at this moment: {its fields, now (ms), number of its parts, states, names, specs, outputs, infos, blobs}, each hash as
-- {field, value, ...}; {} if it is not kept, or larger.
-- ARGV: run, most steps, most bytes of its request, specs, outputs and infos.
use(ARGV[1])
if not status or unfinished or redis.call('HLEN', R .. ':steps') > tonumber(ARGV[2]) then return {} end
local counted, in_hashes = tonumber(meta('bytes')) - RUN_BYTES - STEP_BYTES * counts.count, 0
for _, part in ipairs({':steps', ':out'}) do -- older versions did not count specs, and the values of signals
  in_hashes = in_hashes + (redis.call('MEMORY', 'USAGE', R .. part, 'SAMPLES', 0) or 0)
end
if math.max(counted, in_hashes) > tonumber(ARGV[3]) then return {} end
local reply = {redis.call('HGETALL', R), string.format('%d', now), count_parts(R)}
for _, part in ipairs({':state', ':names', ':steps', ':out', ':info', ':blobs'}) do reply[#reply + 1] = redis.call('HGETALL', R .. part) end
return reply
