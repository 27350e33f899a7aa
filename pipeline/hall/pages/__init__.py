"""The hall's pages, in the wire formats of real exporters. Outlet (a)."""
