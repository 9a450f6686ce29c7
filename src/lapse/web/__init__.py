"""The dashboard: pages that ask brokers as any client does, by the rights of who looks.

Nothing here knows a log or a broker from within; `app.routes` are mounted at a broker's HTTP port.
"""
