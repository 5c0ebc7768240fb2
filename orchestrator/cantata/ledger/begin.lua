-- Leases a step to a worker if the ledger says so; if it is pure, and this its first attempt, the others of its message that are so too.
-- ARGV: run, step, owner (of this call alone, so that a repetition finds its own lease), lease_ms, others of its message
-- Replies {'begun', what the handler of each begun step gets (named) ...} or {reason}: gone, closed, over, early, leased, unfinished.
local MAX_BYTES = 500000 -- of what the handlers of steps begun together get, but for the last
use(ARGV[1])
if not status then return {'gone'} end
if not OPEN[status] then return {'closed'} end
if unfinished then return {'unfinished'} end
local s = get(ARGV[2])
if not s then return {'gone'} end
if OVER[s.state] then return {'over'} end
if s.state == 'running' and s.owner ~= ARGV[3] then return {'leased'} end
if s.state ~= 'sent' and s.state ~= 'running' then return {'early'} end
if status == 'accepted' then redis.call('HSET', R, 'status', 'running', 'started_at', now); status = 'running' end

local function begin(each)
  if each.state == 'sent' then return lease(each, ARGV[3], tonumber(ARGV[4])) end
  add_lease(each, tonumber(ARGV[4]))
  return handler_inputs(each)
end

local function is_first_of_pure(each)
  local spec = spec_of(each.id)
  return each.attempt == (each.state == 'sent' and 0 or 1) and spec.pure and not spec.at_most_once
end

-- The bytes of what the handler of a begun step gets.
local function size_of(needed)
  local size = #(needed.given or '')
  for _, text in ipairs(needed.inputs) do size = size + #text end
  return size
end

local is_first = is_first_of_pure(s)
if is_first and ARGV[5] then
  local others = {unpack(ARGV, 5)}
  for i, packed in ipairs(redis.call('HMGET', R .. ':state', unpack(others))) do states[others[i]] = packed end
  for i, text in ipairs(redis.call('HMGET', R .. ':steps', unpack(others))) do
    if text then spec_of(others[i], text) end
  end
end
local first = begin(s)
local reply, size = {'begun', named(first)}, size_of(first)
for i = 5, is_first and #ARGV or 0 do
  if size > MAX_BYTES then break end
  local other = get(ARGV[i])
  local is_ours = other and (other.state == 'sent' or (other.state == 'running' and other.owner == ARGV[3]))
  if is_ours and is_first_of_pure(other) then
    local needed = begin(other)
    reply[#reply + 1] = named(needed)
    size = size + size_of(needed)
  end
end
return reply
