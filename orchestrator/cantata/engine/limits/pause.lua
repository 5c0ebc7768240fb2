-- Pauses all calls of a model; of several pauses the longest counts, and its note. ARGV: window, model, ms, a note for people (JSON) as lib.lua lists it.
-- Replies when the pause ends (ms).
local key, notes = P .. ':pauses', P .. ':pause_notes'
local known = redis.call('HGETALL', key)
local ends, last = now + math.min(tonumber(ARGV[3]), MAX_PAUSE), now
local is_longest = true
for i = 1, #known, 2 do
  local other = tonumber(known[i + 1])
  if other <= now or other > now + MAX_PAUSE then
    redis.call('HDEL', key, known[i])
    redis.call('HDEL', notes, known[i])
  elseif known[i] == ARGV[2] then
    is_longest = ends > other
    ends = math.max(ends, other)
  else
    last = math.max(last, other)
  end
end
redis.call('HSET', key, ARGV[2], string.format('%.0f', ends))
if is_longest then redis.call('HSET', notes, ARGV[2], ARGV[4]) end
for _, each in ipairs({key, notes}) do redis.call('PEXPIRE', each, math.max(ends, last) - now) end
return ends
