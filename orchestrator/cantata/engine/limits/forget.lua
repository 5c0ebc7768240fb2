-- Forgets calls that wait no more. ARGV: window, ticket, ...; replies the tickets that were called.
for i = 2, #ARGV do
  local waits, permit = waiting(ARGV[i]), permit_of(ARGV[i])
  if waits and waits.queue then dequeue(ARGV[i], waits.queue) end
  if permit then release(ARGV[i], permit) end
  forget_ticket(ARGV[i])
end
return advance()
