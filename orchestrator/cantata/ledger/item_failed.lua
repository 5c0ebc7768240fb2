-- Records that an item of a duty of the sweep failed. ARGV: duty, item, error, version of the caller.
-- Replies how often it has failed: at the third time it is parked.
return record_failure(ARGV[1], ARGV[2], ARGV[3], ARGV[4])
