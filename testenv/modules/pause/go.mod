module hisparse.dev/testenv/pause

go 1.24.0
