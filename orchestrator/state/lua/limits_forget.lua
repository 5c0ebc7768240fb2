-- Takes one that waits out of the lines, since its run is over. ARGV: window, ticket, how many limits, then for each {word, name, rpm, tpm, concurrency}.
-- Replies ticket (run|step), ms, ...: whose turn comes sooner.
local sooner = {}
local i = 4
for _ = 1, tonumber(ARGV[3]) do
  local limit = limit_of(unpack(ARGV, i, i + 4))
  leave(limit, ARGV[2])
  hasten(limit, sooner)
  i = i + 5
end
return sooner
