-- ARGV = a random number. Of the runs and of the sessions of a shard: how many there are, and the bytes that one of them takes.
-- Nothing, if MEMORY USAGE is not permitted.

local RUN = {'', ':steps', ':state', ':edges', ':out', ':info', ':given', ':names', ':expansions', ':blobs', ':log', ':logs', ':closed', ':joins', ':window', ':signals'}
local SAMPLES = 100 -- fields that are looked at of a hash with many; a run's own has fewer, of very different sizes

local function bytes_of_one(list, kind, parts)
  local count = redis.call('ZCARD', list)
  if count == 0 then return 0, 0 end
  local rank = tonumber(ARGV[1]) % count
  local prefix = KEYS[1] .. kind .. redis.call('ZRANGE', list, rank, rank)[1]
  local bytes = 0
  for _, part in ipairs(parts) do
    local found = redis.pcall('MEMORY', 'USAGE', prefix .. part, 'SAMPLES', SAMPLES)
    if type(found) == 'table' then return end
    bytes = bytes + (found or 0)
  end
  return count, bytes
end

local runs, of_run = bytes_of_one(KEYS[1] .. ':runs', ':run:', RUN)
local sessions, of_session = bytes_of_one(KEYS[1] .. ':sessions', ':session:', {':queue', ':history'})
if not (runs and sessions) then return {} end
return {runs, of_run, sessions, of_session}
