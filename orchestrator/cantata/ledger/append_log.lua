-- Appends lines to the log of a run, and drops the oldest beyond its bounds. ARGV: run, most lines, most bytes, then lines (JSON).
-- Replies how many lines it holds, or -1 if the run is gone.
use(ARGV[1])
if not status then return -1 end
local logs = R .. ':logs'
local before = tonumber(meta('log_bytes') or 0)
local bytes = before
for i = 4, #ARGV do
  redis.call('XADD', logs, '*', 'd', ARGV[i])
  bytes = bytes + #ARGV[i]
end
local most, most_bytes = tonumber(ARGV[2]), tonumber(ARGV[3])
local length, dropped = redis.call('XLEN', logs), 0
while length > 1 and (length > most or bytes > most_bytes) do
  local oldest = redis.call('XRANGE', logs, '-', '+', 'COUNT', bytes > most_bytes and 100 or math.min(100, length - most))
  local ids = {}
  for _, entry in ipairs(oldest) do
    if length > 1 and (length > most or bytes > most_bytes) then
      ids[#ids + 1] = entry[1]
      bytes = bytes - #entry[2][2]
      length, dropped = length - 1, dropped + 1
    end
  end
  redis.call('XDEL', logs, unpack(ids))
end
redis.call('HSET', R, 'log_bytes', bytes)
count('log_bytes', tenant, bytes - before)
increase('bytes', bytes - before)
if dropped > 0 then redis.call('HINCRBY', R, 'log_dropped', dropped) end
local keep_ms = redis.call('PTTL', R) -- of a run that is over
if keep_ms > 0 then redis.call('PEXPIRE', logs, keep_ms) end
return length
