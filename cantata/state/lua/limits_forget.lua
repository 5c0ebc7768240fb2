-- Forgets calls that wait no more. ARGV: window, ticket, ...; replies the tickets that were called.
for i = 2, #ARGV do
  local waits, hold = waiting(ARGV[i]), hold_of(ARGV[i])
  if waits and waits.queue then leave(ARGV[i], waits.queue) end
  if hold then release(ARGV[i], hold) end
  drop(ARGV[i])
end
return advance()
