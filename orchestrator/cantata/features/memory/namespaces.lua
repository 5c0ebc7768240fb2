-- Lists the namespaces of a scope that have keys, as they stand in keys. ARGV: scope
return redis.call('ZRANGEBYSCORE', place_of(ARGV[1], '').all, '(' .. string.format('%d', now), '+inf')
