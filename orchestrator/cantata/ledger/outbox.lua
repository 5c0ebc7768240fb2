-- Creates runs that post to webhooks, from the outbox of a tenant in a shard, the oldest first. An entry goes with the call that creates the last of its runs.
-- ARGV: tenant, how many runs this call creates at most, the open deliveries of the tenant in other shards.
-- Replies {run, priority, step, spec, ... of their first steps; 1 if further ones can be created now, else 0; run, error, ... of what can never be created}
local START = '{"kind":"run.start","queue":"webhooks","decides":true,"expands":true}' -- the first step of such a run
local MAX_OPEN = 10000 -- open deliveries of a tenant whose quota is not known
local DELAY_MS = 2000 -- until a tenant with as many is looked at again, unless one of them ends before
local MAX_ENTRIES = 50 -- that this call looks at

local of_tenant, most, elsewhere = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local list, posting = S .. ':outbox:' .. of_tenant, S .. ':posting:' .. of_tenant
local created, is_full, faults = 0, false, {}

local function note_fault(id, fault) faults[#faults + 1] = id or ''; faults[#faults + 1] = tostring(fault) end

-- Creates the run that posts an event to a webhook.
local function create(hook, what, id, entry, post)
  local request = {id = id, text = what .. ' of run ' .. run .. ' to ' .. (hook.alert or hook.to), to = hook.to, alert = hook.alert,
                   event = what, run_id = run, step = post.step, status = post.status, at_ms = entry.at, data = post.data}
  local labels = {webhook_of = run, tenant = tenant ~= '' and tenant or nil}
  local of_priority = count_delivery(id, tenant, elsewhere)
  write_run(id, '@start', START, {
    kind = 'webhook', request = cjson.encode(request), labels = cjson.encode(labels), definitions = definitions, tenant = tenant,
    timeout_ms = DELIVERY_MS, timeout_by = 'of webhooks', max_attempts = 1000, max_steps = 10, retention_ms = entry.keep_ms, accepted_by = '',
  }, of_priority)
  start_run(id, '@start', DELIVERY_MS, SOON)
  for _, item in ipairs({id, of_priority, '@start', START}) do following[#following + 1] = item end
end

-- Creates the runs of an entry, from one of its posts and one of the run's webhooks on; replies where to go on, or nil if all are created.
local function create_from(first_post, first_hook, entry)
  local known = redis.call('HMGET', R, 'webhooks', 'max_deliveries', 'deliveries')
  local hooks, max_open, number, id = cjson.decode(known[1]), tonumber(known[2] or MAX_OPEN), tonumber(known[3] or 0), nil
  for i = first_post, #entry.posts do
    for j = i == first_post and first_hook or 1, #hooks do
      local what = event_for(hooks[j], entry.posts[i].events)
      if what then
        is_full = redis.call('ZCARD', posting) + elsewhere >= max_open
        if is_full or created == most then return i .. ' ' .. j end
        number, id = next_id(run .. 'w', number)
        redis.call('HSET', R, 'deliveries', number)
        created = created + 1
        local is_ok, fault = pcall(create, hooks[j], what, id, entry, entry.posts[i])
        if not is_ok then note_fault(run, fault) end
      end
    end
  end
end

-- Lets a run that has ended expire, if this was its last entry.
local function release_run()
  if redis.call('HINCRBY', R, 'outbox', -1) > 0 then return end
  local keep_ms = unpack(redis.call('HMGET', R, 'retention_ms'))
  redis.call('HDEL', R, 'outbox')
  if redis.call('HDEL', R, 'held') == 0 then return end
  release_definitions(definitions, tonumber(keep_ms))
  if redis.call('HEXISTS', S .. ':clearing', run) == 0 then expire_run() end
end

-- Creates the runs of an entry; replies its text if some are left, else nil.
local function work_off(text)
  local first_post, first_hook, json = string.match(text, '^(%d+) (%d+) (.*)$')
  local entry = cjson.decode(json)
  use(entry.run)
  if not status then return note_fault(run, 'the run is gone, with its webhooks') end
  local left = create_from(tonumber(first_post), tonumber(first_hook), entry)
  if left then return left .. ' ' .. json end
  release_run()
end

redis.call('ZADD', S .. ':outbox', 'XX', now, of_tenant) -- a Redis that is full refuses this, before anything is taken from the list
redis.call('ZREMRANGEBYSCORE', posting, '-inf', now)
for _, text in ipairs(redis.call('LRANGE', list, 0, MAX_ENTRIES - 1)) do
  local is_ok, left = pcall(work_off, text)
  redis.call('LPOP', list)
  if is_ok and left then
    redis.call('LPUSH', list, left)
    break
  end
  count('bytes', of_tenant, -#string.match(text, '^%d* ?%d* ?(.*)$'))
  if not is_ok then note_fault(run, left) end
end
local is_left = redis.call('EXISTS', list) == 1
if not is_left then
  redis.call('ZREM', S .. ':outbox', of_tenant)
elseif is_full then
  redis.call('ZADD', S .. ':outbox', now + DELAY_MS, of_tenant)
end
return {following, is_left and not is_full and 1 or 0, faults}
