-- Adds what an attempt used that ends without an outcome: its run or its scope was stopped while a model was asked. ARGV: run, step, attempt, usage.
use(ARGV[1])
if status then add_usage_once(ARGV[2], ARGV[3], ARGV[4]) end
return 1
