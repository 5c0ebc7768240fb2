-- Replies the beginning of a step's output as JSON text, "" if it has none, and how many bytes that has in all. ARGV: run, most bytes, step
local R = run_key(ARGV[1])
local text = redis.call('HGET', R .. ':out', ARGV[3])
if text and string.sub(text, 1, 1) == '@' then text = redis.call('HGET', R .. ':blobs', string.sub(text, 2)) end
return {beginning(text or '', tonumber(ARGV[2])), #(text or '')}
