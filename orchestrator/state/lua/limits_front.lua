-- Who is at the front of the lines that a call would stand in. ARGV: window, how many of each, how many limits, then for each {word, name, rpm, tpm, concurrency}.
-- Replies tickets (run|step).
local tickets = {}
local i = 4
for _ = 1, tonumber(ARGV[3]) do
  local limit = limit_of(unpack(ARGV, i, i + 4))
  for _, ticket in ipairs(redis.call('ZRANGE', limit.key .. ':line', 0, ARGV[2] - 1)) do tickets[#tickets + 1] = ticket end
  i = i + 5
end
return tickets
