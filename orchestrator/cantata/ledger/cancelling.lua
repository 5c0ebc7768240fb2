-- Between lib.lua and the scripts that cancel a run with workflows in Python, or go on with that: its workflows clean up. All other steps are stopped, and
-- the code of the outermost ones gets CancelledError with its next advance.
local GRACE_S = 30 -- of a workflow that names none

-- Reads open steps from a place on; replies where to go on, and them.
local function scan_open(cursor)
  local found = {}
  local next_cursor, cells = unpack(redis.call('HSCAN', R .. ':state', cursor, 'COUNT', 4 * CHUNK))
  for i = 1, #cells, 2 do
    if states[cells[i]] == nil then states[cells[i]] = cells[i + 1] end
    local s = get(cells[i])
    if not OVER[s.state] then found[#found + 1] = s end
  end
  return next_cursor, found
end

-- Looks for the open advances, {root: [step, its grace (s)]}; ends the run at once if no workflow's code has begun. `by`: who cancels it (JSON), or '';
-- an older version left none.
function WORK.find_advances(cursor, advances, error_json, by)
  local next_cursor, open = scan_open(cursor)
  local ids = {}
  for i, s in ipairs(open) do ids[i] = s.id end
  if #ids > 0 then read_specs_of(ids) end
  for _, id in ipairs(ids) do
    local spec = spec_of(id)
    if spec.kind == 'workflow.advance' and spec.params.root then advances[spec.params.root] = {id, spec.params.grace_s or GRACE_S} end
  end
  if next_cursor ~= '0' then return follow('find_advances', next_cursor, advances, error_json, by or '') end
  local outermost, grace_s = {}, 0
  for root, advance in pairs(advances) do
    local is_outermost = true
    for at in string.gmatch(root, '()/') do is_outermost = is_outermost and not advances[string.sub(root, 1, at - 1)] end
    if is_outermost then
      outermost[advance[1]] = true
      grace_s = math.max(grace_s, advance[2])
    end
  end
  if grace_s == 0 then return close('cancelled', error_json, by) end
  cancelling = error_json
  local ends_at = string.format('%d', math.min(now + grace_s * 1000, time_left and now + time_left or tonumber(meta('deadline_at'))))
  redis.call('HSET', R, 'cancelling', cancelling, 'deadline_at', ends_at)
  redis.call('HDEL', R, 'time_left')
  redis.call('ZADD', S .. ':due', ends_at, 'deadline|' .. run .. '|')
  local author = #(by or '') > 2 and ',' .. string.sub(by, 2) or '}'
  event('cancelling', nil, nil, nil, '{"until_ms":' .. ends_at .. author)
  follow('stop_others', '0', outermost)
end

-- Stops all open steps but the outermost advances, and sends these again: an attempt of theirs that is under way counts no more.
function WORK.stop_others(cursor, outermost)
  local next_cursor, open = scan_open(cursor)
  for _, s in ipairs(open) do
    if not has_room() then return follow('stop_others', cursor, outermost) end
    if not outermost[s.id] then
      stop(s)
    elseif redis.call('HSETNX', R, 'cancelled:' .. s.id, 1) == 1 then
      remove_entries(s)
      s.state, s.pending, s.taken = 'waiting', 0, 1
      mark_sent(s, UNSENT - now)
    end
  end
  if next_cursor ~= '0' then follow('stop_others', next_cursor, outermost) end
end
