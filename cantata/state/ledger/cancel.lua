-- Ends a run. ARGV: run, status, error (JSON). Replies its status after that, or false if there is no such run.
use(ARGV[1])
if not status then return false end
if status == 'accepted' or status == 'running' then
  close(ARGV[2], ARGV[3])
  return ARGV[2]
end
return status
