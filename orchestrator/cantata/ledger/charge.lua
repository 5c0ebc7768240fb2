-- Counts an item that lies in another slot, or is written without a script. ARGV: tenant, item, bytes, how long it lives (ms)
charge(ARGV[1], ARGV[2], tonumber(ARGV[3]), now + ARGV[4])
