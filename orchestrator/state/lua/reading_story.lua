-- Replies the events of one step, but for the pieces of a model's reply: {offset, type, attempt, worker, when (ms), detail}, ...
-- ARGV: run, step, first and last offset
local found = {}
for _, entry in ipairs(redis.call('XRANGE', run_key(ARGV[1]) .. ':log', '0-' .. ARGV[3], '0-' .. ARGV[4])) do
  local fields = {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  if fields.s == ARGV[2] and fields.t ~= 'delta' then
    found[#found + 1] = {string.match(entry[1], '%d+$'), fields.t, fields.a, fields.w, fields.at, fields.d}
  end
end
return found
