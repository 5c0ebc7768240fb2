-- Replies the order in which steps ended, as the log of their run has it, the last first. It looks at the log in pieces, from its end on.
-- ARGV: run, the id of the event before which to look on, or "+" at first, name, ... of the steps
-- Replies {where the next call looks on, "" if the log has no more, name, ...}.
local PIECE, EVENTS = 30, 300 -- at once, and in one call, which keeps Redis for about 1 ms then
local ENDS = {done = true, failed = true, missed_deadline = true, skipped = true, expanded = true}
use(ARGV[1])
if unfinished then return {'unfinished'} end
local names, name_of = {}, {}
for i = 3, #ARGV do names[i - 2] = ARGV[i] end
for i, step in ipairs(answering_all(names)) do name_of[step] = names[i] end
local reply, looked = {ARGV[2]}, 0
repeat
  local events = redis.call('XREVRANGE', R .. ':log', reply[1], '-', 'COUNT', PIECE)
  for _, event in ipairs(events) do
    local fields = {}
    for i = 1, #event[2], 2 do fields[event[2][i]] = event[2][i + 1] end
    local name = ENDS[fields.t] and name_of[fields.s]
    if name then
      reply[#reply + 1] = name
      name_of[fields.s] = nil
    end
  end
  looked = looked + #events
  reply[1] = #events == PIECE and '(' .. events[PIECE][1] or ''
until reply[1] == '' or looked >= EVENTS or not next(name_of)
return reply
