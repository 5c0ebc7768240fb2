-- Deletes the record of a batch that cannot be read, whatever its keys are. Given: {name, tenant (percent-encoded)}. Replies {1}.
local state = redis.pcall('HGET', B, 'state')
if type(state) == 'string' then count_total('batches:' .. state, -1) end
local piece = 0
while redis.call('UNLINK', B .. ':delivered:' .. piece, B .. ':failed:' .. piece) > 0 do piece = piece + 1 end
redis.call('UNLINK', B, B .. ':prices', B .. ':feeder')
redis.call('ZREM', S .. ':batches:' .. given.tenant, given.name)
discharge('batch:' .. scope)
return {1}
