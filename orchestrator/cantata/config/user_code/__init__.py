"""User code as text: functions are found and checked without importing their modules."""
