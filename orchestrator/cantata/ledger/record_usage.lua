-- Adds the usage of an attempt without an outcome: its run or its scope was stopped during a model call. ARGV: run, step, attempt, usage (JSON).
use(ARGV[1])
if status then add_usage_once(ARGV[2], ARGV[3], cjson.decode(ARGV[4])) end
return 1
