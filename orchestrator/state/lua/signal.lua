-- Gives a waiting step its value; kept if the step is not parked yet. ARGV: run, step, value (JSON), resend_ms.
-- Replies {word, sends}: taken, kept, over, closed, unknown.
use(ARGV[1])
if not status then return {'unknown', {}} end
if status ~= 'running' and status ~= 'accepted' then return {'closed', {}} end
local id = answering(ARGV[2])
local s = get(id)
if s and OVER[s.word] then return {'over', {}} end
if s and s.word == 'waiting_signal' then
  event('signal', id)
  event('done', id)
  resolve(s, 'done', {done = true}, ARGV[3])
  return {'taken', (dispatch(tonumber(ARGV[4])))}
end
if s then
  local _, _, spec = spec_of(id)
  if spec.kind ~= 'wait' then return {'unknown', {}} end
end
if redis.call('HSETNX', R .. ':signals', id, ARGV[3]) == 0 then return {'over', {}} end
event('signal', id)
return {'kept', {}}
