/* For builds with the address or thread sanitizer: libraries stay in memory when they are unloaded.
 * The leak sanitizer can then name the library of each leak, and leak.txt can exclude the plugins
 * of Open MPI. The thread sanitizer ends a program that unloads a library named in thread.txt. */
int dlclose(void *library);

int dlclose(void *library)
{
    (void)library;
    return 0;
}
