-- Notes that a step nobody began was sent again, so that its new message is looked for and not the old one. ARGV: run, step, resend_ms.
use(ARGV[1])
local s = status and get(ARGV[2]) -- an accepted run is not running yet
if not s or s.word ~= 'sent' then return 0 end
mark_sent(s, tonumber(ARGV[3]))
return 1
