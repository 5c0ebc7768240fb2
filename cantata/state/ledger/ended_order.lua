-- Replies the order in which steps ended, as the log of their run has it, the last first. A call looks at a piece of the log, from its end on.
-- ARGV: run, the id of the event before which to look on, or "+" at first, name, ... of the steps
-- Replies {the id for the next call, "" if the log has no more, name, ...}.
local EVENTS = 300 -- that one call looks at: Redis takes 1 ms for them
local ENDS = {done = true, failed = true, missed_deadline = true, skipped = true, expanded = true}
use(ARGV[1])
if unfinished then return {'unfinished'} end
local names, name_of = {}, {}
for i = 3, #ARGV do names[i - 2] = ARGV[i] end
for i, step in ipairs(answering_all(names)) do name_of[step] = names[i] end
local events = redis.call('XREVRANGE', R .. ':log', ARGV[2], '-', 'COUNT', EVENTS)
local reply = {#events == EVENTS and '(' .. events[EVENTS][1] or ''}
for _, event in ipairs(events) do
  local fields = {}
  for i = 1, #event[2], 2 do fields[event[2][i]] = event[2][i + 1] end
  local name = ENDS[fields.t] and name_of[fields.s]
  if name then
    reply[#reply + 1] = name
    name_of[fields.s] = nil
  end
end
return reply
