-- Replies when steps began and ended, as some of a run's events tell: a flat list of type, step, attempt, worker, when (ms).
-- ARGV: run, first and last offset, then for each map whose items are not all wanted: its prefix and "/", how many items are.
local KINDS = {started = true, done = true, failed = true, late = true, skipped = true, grown = true}
local found = {}

-- Whether a step is an item past those that are wanted, or grew from one.
local function is_left_out(step)
  for i = 4, #ARGV, 2 do
    local prefix = ARGV[i]
    if string.sub(step, 1, #prefix) == prefix then
      local index, after = string.match(step, '^(%d+)(.?)', #prefix + 1)
      if index and (after == '' or after == '/') and tonumber(index) >= tonumber(ARGV[i + 1]) then return true end
    end
  end
  return false
end

for _, entry in ipairs(redis.call('XRANGE', run_key(ARGV[1]) .. ':log', '0-' .. ARGV[2], '0-' .. ARGV[3])) do
  local fields = {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  if KINDS[fields.t] and fields.s ~= '' and not is_left_out(fields.s) then
    for _, name in ipairs({'t', 's', 'a', 'w', 'at'}) do found[#found + 1] = fields[name] end
  end
end
return found
