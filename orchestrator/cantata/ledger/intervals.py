"""Times of leases, sweeps and retention, in seconds."""

LEASE_S = 5.0  # how long a frozen or lost worker keeps a step from others
RENEW_S = 1.0  # five chances to renew before a lease runs out
SWEEP_S = 0.5  # how soon after its lease a step is sent again
RESEND_S = 4.0  # how long a step may be sent and not begun before a sweep checks its message
RETENTION_S = 86_400.0  # how long a finished run can be read
RESEND_MS = int(RESEND_S * 1000)
