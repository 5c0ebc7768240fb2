-- Ends the pause of a model. ARGV: window, model. Replies 1 if it was paused, else 0.
local until_ms = paused_until({'model', ARGV[2]})
redis.call('HDEL', P .. ':pauses', ARGV[2])
redis.call('HDEL', P .. ':pause_notes', ARGV[2])
return until_ms > now and 1 or 0
