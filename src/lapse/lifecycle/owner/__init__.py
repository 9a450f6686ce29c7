"""The process that has a log open: the facts it reports and the receipts it commits."""
