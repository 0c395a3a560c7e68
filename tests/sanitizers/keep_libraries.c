/* In builds with the address or thread sanitizer only: a plugin that a library unloads stays in memory.
 * The leak checker can then still name it, and leak.txt can tell Open MPI's plugins from us; the thread
 * sanitizer ends a program that unloads what thread.txt names. */
int dlclose(void *library);

int dlclose(void *library)
{
    (void)library;
    return 0;
}
