-- Accepts a run, once: the same id again changes nothing.
-- ARGV: run, the offer (JSON) that `accept` of accepting.lua takes, with definitions_text? in it. Replies {result, priority}.
local offer = cjson.decode(ARGV[2])
return accept(ARGV[1], offer, offer.definitions_text)
