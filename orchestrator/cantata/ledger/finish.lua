-- Does a piece of what an earlier call of a run left. ARGV: run, resend_ms (0: the next sweep sends what becomes ready).
-- Replies {1 if something is left, sends {step, spec, ...}, run status, {run, priority, step, spec, ...} of the next runs of sessions,
-- 1 if the outbox got an entry}.
use(ARGV[1])
if not unfinished or not OPEN[status] then
  finish_work() -- a worker of a version ended the run that does not know of it
  return {0, {}, status or '', {}, 0}
end
local sends = dispatch(ARGV[2] == '0' and UNSENT - now or tonumber(ARGV[2]))
return {unfinished and 1 or 0, sends, status, following, #posts > 0 and 1 or has_posts}
