-- Replies the beginning of what a run was asked, and how many bytes that has in all. ARGV: run, most bytes
local request = redis.call('HGET', run_key(ARGV[1]), 'request') or ''
return {beginning(request, tonumber(ARGV[2])), #request}
