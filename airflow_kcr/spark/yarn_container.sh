# What bash reads (BASH_ENV) that YARN has start a driver. YARN sends SIGTERM to all processes of a container at once,
# and takes the container for over when this bash is: so it stays until the driver, which drains meanwhile, has ended.
trap : TERM
unset BASH_ENV
