"""What people read: tables of measures."""
