-- Gives up a lease without counting the attempt: a worker that stops releases what it cannot finish, one that is too old refuses what it does not know.
-- ARGV: run, step, attempt, owner, resend_ms (0: the next sweep sends it), why it is refused (JSON) or "". Replies {step, spec} to send, or {}.
use(ARGV[1])
if is_over() then return {} end
if unfinished then return {'unfinished'} end
local s = get(ARGV[2])
local is_leased = has_lease(s, ARGV[3], ARGV[4])
if not is_leased and not is_dispatched(s, ARGV[3]) then return {} end
local spec, text = spec_of(s.id)
if spec.at_most_once and ARGV[6] == '' then
  park(s, ARGV[4])
  return {}
end
if not is_leased then return {} end -- its task is under way
remove_entries(s)
local why, before = ARGV[6] ~= '' and cjson.decode(ARGV[6]).message, will_be_refused(s)
if before and before == why then -- one event for each process and reason
  s.attempt = s.attempt - 1
else
  if before then announce(s) end
  event(why and 'refused' or 'released', s.id, s.attempt, ARGV[4], ARGV[6])
  local refused = why and cjson.decode(redis.call('HGET', R .. ':info', s.id) or '{}').refused or {}
  refused[process_of(ARGV[4])] = why or nil
  edit_info(s.id, {refused = why and cjson.encode(refused)})
end
if why then redis.call('HSET', R, 'refused', now_text .. ' ' .. ARGV[6]) end
mark_sent(s, tonumber(ARGV[5]))
if ARGV[5] == '0' then redis.call('ZADD', S .. ':ready', UNSENT, run .. '|' .. s.id) end
return {s.id, text}
