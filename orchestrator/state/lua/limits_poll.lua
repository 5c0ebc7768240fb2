-- Looks for calls that wait. ARGV: window, ticket (run|step), ...; replies for each how long it is to wait (ms): 0 if it is to come and ask, as is one
-- that nothing is known of. For those that come room is kept for a while.
give_up_dead()
local replies = {}
for i = 2, #ARGV do
  local ticket = ARGV[i]
  local waits = waiting(ticket)
  local answer, limits, places
  if waits then answer, limits, places = look(ticket, waits) end
  if limits then
    for n, limit in ipairs(limits) do
      line_up(limit, ticket, places[n], waits.call.tokens, now + GRACE, 'called')
      waits.marks[limit.key] = places[n].mark
    end
    wait_on(ticket, waits, now)
  end
  replies[#replies + 1] = answer and answer[1] == 'wait' and answer[2] or 0
end
return replies
