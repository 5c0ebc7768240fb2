"""Pure plans of what starts by itself: the times of schedules, and the messages of webhooks."""
