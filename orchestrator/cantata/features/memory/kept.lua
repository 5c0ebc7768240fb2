-- Replies the bytes of the tenant's memories, after some of those that have ended were removed.
tidy_ended()
return tonumber(redis.call('HGET', T .. ':kept', 'bytes') or 0)
