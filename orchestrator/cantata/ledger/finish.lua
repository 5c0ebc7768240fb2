-- Does a piece of what an earlier call of a run left. ARGV: run, resend_ms (0: the next sweep sends what becomes ready).
-- Replies named: is_left: 1 if something is left; sends {step, spec, ...}; run_status; following {run, priority, step, spec, ...}: the next runs of sessions;
-- has_posts: 1 if the outbox got an entry.
use(ARGV[1])
if not unfinished or not OPEN[status] then
  finish_work() -- a worker of a version ended the run that does not know of it
  return named{run_status = status or nil}
end
local sends = take_ready(ARGV[2] == '0' and UNSENT - now or tonumber(ARGV[2]))
return named{
  is_left = unfinished and 1 or nil, sends = sends, run_status = status, following = following, has_posts = (#posts > 0 or has_posts == 1) and 1 or nil,
}
