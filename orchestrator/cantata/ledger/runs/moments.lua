-- Replies when steps began and ended, and what held them back, by some of a run's events: a flat list of type, step, worker, when (ms).
-- ARGV: run, first and last offset, then for each map of which not all items are wanted: its prefix and "/", how many items are.
local KINDS = {started = true, done = true, failed = true, missed_deadline = true, skipped = true, expanded = true,
  waiting = true, sleeping = true, uncertain = true, rate_limited = true}
local found, n = {}, 0

-- Whether a step is an item beyond those that are wanted, or was added by one.
local function is_left_out(step)
  for i = 4, #ARGV, 2 do
    local prefix = ARGV[i]
    if string.find(step, prefix, 1, true) == 1 then
      local index, after = string.match(step, '^(%d+)(.?)', #prefix + 1)
      if index and (after == '' or after == '/') and tonumber(index) >= tonumber(ARGV[i + 1]) then return true end
    end
  end
  return false
end

for _, entry in ipairs(redis.call('XRANGE', S .. ':run:' .. ARGV[1] .. ':log', '0-' .. ARGV[2], '0-' .. ARGV[3])) do
  local fields = entry[2] -- in the order in which `event` of ledger/lib.lua writes them: t, s, a, w, at, d
  if KINDS[fields[2]] and fields[4] ~= '' and not is_left_out(fields[4]) then
    found[n + 1], found[n + 2], found[n + 3], found[n + 4] = fields[2], fields[4], fields[8], fields[10]
    n = n + 4
  end
end
return found
