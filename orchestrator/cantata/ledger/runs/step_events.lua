-- Replies the events of one step, but for the pieces of a model's reply: {offset, type, attempt, worker, when (ms), detail}, ...
-- ARGV: run, step, first and last offset
local found = {}
for _, entry in ipairs(redis.call('XRANGE', S .. ':run:' .. ARGV[1] .. ':log', '0-' .. ARGV[3], '0-' .. ARGV[4])) do
  local fields = entry[2] -- in the order in which `event` of ledger/lib.lua writes them: t, s, a, w, at, d
  if fields[4] == ARGV[2] and fields[2] ~= 'delta' then
    found[#found + 1] = {string.match(entry[1], '%d+$'), fields[2], fields[6], fields[8], fields[10], fields[12]}
  end
end
return found
