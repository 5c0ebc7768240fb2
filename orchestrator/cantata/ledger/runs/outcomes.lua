-- Reads the outcomes of runs of one shard. ARGV: run, ...
-- Replies for each run: {} if it is not known, {status} if it is open, else {status, failures, error (JSON), input tokens, output tokens, cost, kind, model calls
-- whose price is not known, and of each
-- of its terminals name, state, output (JSON), info (JSON)}; {'unreadable', why} if it cannot be read.
local function row_of(id)
  use(id)
  local row = {status or nil}
  if status and not OPEN[status] then
    local flat = redis.call('HMGET', R, 'failures', 'error', 'input_tokens', 'output_tokens', 'cost_usd', 'kind', 'unpriced', 'terminals')
    for j = 1, 7 do row[j + 1] = flat[j] or '' end
    for _, name in ipairs(cjson.decode(flat[8] or '[]')) do
      local step = answering(name)
      local s = get(step)
      for _, value in ipairs({name, s and s.state or '', output_of(step), redis.call('HGET', R .. ':info', step) or '{}'}) do
        table.insert(row, value)
      end
    end
  end
  return row
end

local reply = {}
for i, id in ipairs(ARGV) do
  local is_read, row = pcall(row_of, id)
  reply[i] = is_read and row or {'unreadable', reason_of(row)}
end
return reply
