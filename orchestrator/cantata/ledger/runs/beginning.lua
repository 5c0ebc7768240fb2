-- Replies the beginning of a step's output, or of the run's request, as JSON text, and how many bytes that has in all.
-- ARGV: run, most bytes, step or "" for the request
use(ARGV[1])
local text = ARGV[3] == '' and (meta('request') or '') or output_of(ARGV[3])
return {truncate(text, tonumber(ARGV[2])), #text}
