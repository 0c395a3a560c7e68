/* Damaged, incomplete and foreign checkpoints are skipped with a warning that names the folder and
 * the reason, and the next older one is loaded. If all are damaged, the run ends with code 80 and
 * does not start from the beginning. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "datasets/shard/h5file.h"
#include "tests/check.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/checkpoint/manifest.h"
#include "trainer/formats/checkpoint/reader.h"
#include "trainer/formats/checkpoint/run_lock.h"

static struct comm *world;
static char root[64], messages[65536];
static float data[64 * 48], moment[64 * 48], other[48];
static const struct checkpoint_tensor tensors[2] = {
    {"wte.weight", 2, {64, 48}, {0, 0}, 64, 48, false, data},
    {"ln.weight", 1, {48, 1}, {0, 0}, 1, 48, false, other}};
static const struct checkpoint_tensor moment_tensors[2] = {
    {"wte.weight", 2, {64, 48}, {0, 0}, 64, 48, false, moment},
    {"ln.weight", 1, {48, 1}, {0, 0}, 1, 48, false, other}};
static const struct checkpoint_tensor_set sets[2] = {{"model", tensors, 2},
                                                     {"optimizer", moment_tensors, 2}};

static struct checkpoint *open_run(int64_t keep)
{
    char tokenizer[128], run[128];
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer", root);
    snprintf(run, sizeof run, "%s/run", root);
    struct checkpoint_options options = {.run_dir = run,
                                         .tokenizer_dir = tokenizer,
                                         .recipe_text = "seed: 1\n",
                                         .data_fingerprint = "abc",
                                         .keep = keep,
                                         .async = true,
                                         .world = world,
                                         .replica_group = world};
    struct checkpoint *c = NULL;
    CHECK_OK(checkpoint_open(&options, &c));
    return c;
}

static void save_step(struct checkpoint *c, int64_t step)
{
    for (int i = 0; i < 64 * 48; i++) {
        data[i] = (float)(i + step);
        moment[i] = (float)(i - step);
    }
    struct checkpoint_state state = {step, step, step, 1.0};
    int64_t published;
    CHECK_OK(checkpoint_save(c, &state, sets, 2, NULL));
    CHECK_OK(checkpoint_publish(c, &published));
    CHECK_EQUAL(published, step);
}

static void run_shell(const char *format, const char *a, const char *b)
{
    char command[1024], line[2048];
    snprintf(command, sizeof command, "%s", format);
    snprintf(line, sizeof line, "A='%s'; B='%s'; %s", a, b, command);
    if (system(line) != 0) {
        fprintf(stderr, "failed: %s\n", line);
        exit(1);
    }
}

/* Makes a run with the valid steps 1, 2 and 3 and a copy of it that restore_run copies back. */
static void make_run(void)
{
    run_shell("rm -rf \"$A\" && mkdir -p \"$A/tokenizer\" && echo '{\"model\": {}}' > "
              "\"$A/tokenizer/tokenizer.json\"",
              root, "");
    struct checkpoint *c = open_run(3);
    for (int64_t step = 1; step <= 3; step++) {
        save_step(c, step);
    }
    CHECK_OK(checkpoint_close(&c));
    run_shell("cp -r \"$A/run\" \"$A/whole\"", root, "");
}

static void restore_run(void)
{
    run_shell("rm -rf \"$A/run\" && cp -r \"$A/whole\" \"$A/run\"", root, "");
}

/* Calls checkpoint_find and loads what it finds. messages[] is the text of standard error. */
static status find_checkpoint(int64_t *step)
{
    char path[128];
    snprintf(path, sizeof path, "%s/messages", root);
    fflush(stderr);
    int original = dup(2);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && dup2(file, 2) == 2);
    struct checkpoint *c = open_run(3);
    struct checkpoint_info found;
    status result = checkpoint_find(c, NULL, &found);
    *step = found.found ? found.state.step : -1;
    if (found.found) {
        CHECK_OK(checkpoint_load(world, found.folder, sets, 2));
        CHECK(data[5] == (float)(5 + *step));
    }
    free(found.recipe_text);
    CHECK_OK(checkpoint_close(&c));
    fflush(stderr);
    dup2(original, 2);
    close(original);
    ssize_t got = pread(file, messages, sizeof messages - 1, 0);
    messages[got > 0 ? got : 0] = '\0';
    close(file);
    return result;
}

/* Damages the newest checkpoint with a shell command ($A is its folder, $B the file). The one
 * before is loaded, and the warning contains the name of the folder and the text. */
static void expect_skip(const char *damage, const char *file, const char *text)
{
    char folder[128];
    int64_t step;
    snprintf(folder, sizeof folder, "%s/run/checkpoints/step-00000003", root);
    restore_run();
    run_shell(damage, folder, file);
    status result = find_checkpoint(&step);
    bool correct = result == STATUS_OK && step == 2 && strstr(messages, "W-CKPT-SKIP") != NULL &&
                   strstr(messages, "step-00000003") != NULL && strstr(messages, text) != NULL;
    if (!correct) {
        fprintf(stderr, "damage '%s' of %s: status %d, step %lld, messages: %s\n", damage, file,
                result, (long long)step, messages);
        exit(1);
    }
}

static void test_each_file(void)
{
    static const char *const files[] = {"model-00000-of-00001.h5", "optimizer-00000-of-00001.h5",
                                        "state-00000.h5", "tokenizer/tokenizer.json",
                                        "manifest.json"};
    for (int i = 0; i < COUNT(files); i++) {
        const char *file = files[i];
        bool manifest = strcmp(file, MANIFEST_FILE) == 0;
        expect_skip("printf '\\377' | dd of=\"$A/$B\" bs=1 seek=9 conv=notrunc 2>/dev/null", file,
                    file);
        expect_skip("truncate -s -1 \"$A/$B\"", file, file);
        expect_skip("truncate -s 0 \"$A/$B\"", file, file);
        expect_skip("rm \"$A/$B\"", file, file);
        expect_skip("mv \"$A/$B\" \"$A/$B.moved\"", file, file);
        expect_skip("printf x >> \"$A/$B\"", file, file);
        expect_skip("rm \"$A/$B\"; mkdir \"$A/$B\"", file, file);
        if (!manifest && i < 2) { /* the file of another step: same size, other content */
            expect_skip("cp \"$A/../step-00000002/$B\" \"$A/$B\"", file, file);
        }
    }
    expect_skip("cd \"$A\"; mv model-*.h5 x; mv optimizer-*.h5 model-00000-of-00001.h5; "
                "mv x optimizer-00000-of-00001.h5",
                "", "model-00000-of-00001.h5");
    expect_skip("cp \"$A/../step-00000002/manifest.json\" \"$A/\"", "", "sha256 mismatch");
    expect_skip("cd \"$A/..\"; rm -r step-00000003; cp -r step-00000002 step-00000003", "",
                "step 2");
    expect_skip("rm -r \"$A\"/*", "", "manifest.json");
}

static void test_bit_flips(void)
{
    char path[128];
    struct stat about;
    snprintf(path, sizeof path, "%s/run/checkpoints/step-00000003/model-00000-of-00001.h5", root);
    restore_run();
    CHECK(stat(path, &about) == 0);
    for (int i = 0; i < 60; i++) {
        int64_t step;
        off_t at = (off_t)((uint64_t)i * 2654435761u % (uint64_t)about.st_size);
        unsigned char byte;
        int file = open(path, O_RDWR);
        CHECK(file >= 0 && pread(file, &byte, 1, at) == 1);
        byte ^= (unsigned char)(1u << i % 8);
        CHECK(pwrite(file, &byte, 1, at) == 1);
        CHECK_OK(find_checkpoint(&step));
        CHECK_EQUAL(step, 2);
        byte ^= (unsigned char)(1u << i % 8);
        CHECK(pwrite(file, &byte, 1, at) == 1);
        close(file);
    }
}

/* Replaces a text in the manifest of step 3 and corrects the digest. */
static void edit_manifest(const char *from, const char *to)
{
    char path[128], digest[HASH_TEXT_BYTES];
    snprintf(path, sizeof path, "%s/run/checkpoints/step-00000003/manifest.json", root);
    char *text = NULL, *forged = NULL;
    size_t bytes = 0;
    CHECK_OK(file_read(path, 1 << 20, &text, &bytes));
    char *at = strstr(text, from), *tail = strstr(text, ",\n \"sha256\": \"");
    CHECK(at != NULL);
    for (char *next = tail; next != NULL; next = strstr(next + 1, ",\n \"sha256\": \"")) {
        tail = next;
    }
    CHECK(tail != NULL && at < tail);
    size_t room = bytes + strlen(to) + 256;
    forged = calloc(1, room);
    CHECK(forged != NULL);
    size_t used = (size_t)(at - text);
    memcpy(forged, text, used);
    *tail = '\0';
    used += (size_t)snprintf(forged + used, room - used, "%s%s", to, at + strlen(from));
    CHECK_OK(hash_memory(forged, used, digest));
    snprintf(forged + used, room - used, ",\n \"sha256\": \"%s\"\n}\n", digest);
    CHECK_OK(file_write(path, forged, strlen(forged)));
    free(text);
    free(forged);
}

static void expect_forgery(const char *from, const char *to, const char *text)
{
    int64_t step;
    restore_run();
    edit_manifest(from, to);
    CHECK_OK(find_checkpoint(&step));
    if (step != 2 || strstr(messages, text) == NULL) {
        fprintf(stderr, "'%s' -> '%s': step %lld, messages: %s\n", from, to, (long long)step,
                messages);
        exit(1);
    }
}

static void test_manifests(void)
{
    expect_skip("echo '{}' > \"$A/manifest.json\"", "", "not a manifest");
    expect_skip("head -c 700 \"$A/../step-00000002/manifest.json\" > \"$A/manifest.json\"", "",
                "truncated");
    expect_skip("sed -i 's/\"samples\": 3/\"samples\": 4/' \"$A/manifest.json\"", "",
                "truncated or edited");
    expect_skip("sed -i 's/\"format_version\": 1/\"format_version\": 2/' \"$A/manifest.json\"", "",
                "format_version 2 is not supported");
    expect_skip("head -c 100000 /dev/zero > \"$A/manifest.json\"", "", "truncated");
    expect_forgery("\"format_version\": 1", "\"format_version\": 7",
                   "format_version 7 is not supported");
    expect_forgery("model-00000-of-00001.h5", "../../../etc/passwd", "invalid name");
    expect_forgery("\"name\": \"state-00000.h5\"", "\"name\": \"model-00000-of-00001.h5\"",
                   "listed twice");
    expect_forgery("    64,\n    48\n", "    65,\n    48\n", "wte.weight");
    expect_forgery("    64,\n    48\n", "    1099511627776,\n    1099511627776\n", "invalid shape");
    expect_forgery("    64,\n    48\n", "    -64,\n    48\n", "invalid shape");
    expect_forgery("      0,\n      0\n", "      1,\n      0\n", "outside");
    expect_forgery("\"dtype\": \"f32\"", "\"dtype\": \"f16\"", "dtype");
    expect_forgery("\"ranks\": 1", "\"ranks\": -1", "out of range");
    expect_forgery("\"step\": 3", "\"step\": 4", "step 4");
}

/* Copies the datasets of an HDF5 file into a file of the oldest format. */
static void copy_to_oldest_format(const char *from, const char *to)
{
    hid_t source, target = H5Fcreate(to, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    CHECK_OK(h5file_open(from, &source));
    for (int i = 0; i < 2; i++) {
        const char *name = tensors[i].name;
        CHECK(H5Ocopy(source, name, target, name, H5P_DEFAULT, H5P_DEFAULT) >= 0);
    }
    CHECK_OK(h5file_close(from, &source));
    CHECK(H5Fclose(target) >= 0);
}

/* Metadata of the oldest format of HDF5 has no checksums, and damage to it can crash the library.
 * A manifest with correct digests does not make such a file acceptable. */
static void test_oldest_format(void)
{
    char folder[128], path[192], old[192], digest[2][HASH_TEXT_BYTES], text[2][192];
    int64_t bytes[2];
    restore_run();
    snprintf(folder, sizeof folder, "%s/run/checkpoints/step-00000003", root);
    snprintf(path, sizeof path, "%s/model-00000-of-00001.h5", folder);
    snprintf(old, sizeof old, "%s/old.h5", root);
    copy_to_oldest_format(path, old);
    CHECK_OK(hash_file(path, digest[0], &bytes[0]));
    CHECK_OK(hash_file(old, digest[1], &bytes[1]));
    CHECK(rename(old, path) == 0);
    for (int i = 0; i < 2; i++) {
        snprintf(text[i], sizeof text[i], "\"bytes\": %lld,\n   \"sha256\": \"%s\"",
                 (long long)bytes[i], digest[i]);
    }
    edit_manifest(text[0], text[1]);
    CHECK_OK(checkpoint_inspect(folder, true)); /* all digests are correct */
    CHECK_FAILS(checkpoint_load(world, folder, sets, 2), STATUS_CHECKPOINT, "oldest format");
    struct checkpoint_reader *reader = NULL;
    CHECK_OK(checkpoint_reader_open(folder, &reader));
    const struct manifest_tensor *t =
        manifest_find_tensor(checkpoint_reader_manifest(reader), "model", "ln.weight");
    CHECK_FAILS(checkpoint_reader_read(reader, t, (int64_t[2]){0, 0}, (int64_t[2]){48, 1}, other),
                STATUS_CHECKPOINT, "oldest format");
    checkpoint_reader_close(&reader);
}

static void test_all_damaged(void)
{
    int64_t step;
    restore_run();
    run_shell("cd \"$A/run/checkpoints\" && rm step-00000001/model-*.h5 && truncate -s 5 "
              "step-00000002/manifest.json && printf x >> step-00000003/state-00000.h5",
              root, "");
    CHECK_EQUAL(find_checkpoint(&step), STATUS_CHECKPOINT);
    CHECK_EQUAL(step, -1);
    CHECK(strstr(messages, "E-CHECKPOINT") != NULL && strstr(messages, "--resume never") != NULL);
    char *error = strstr(messages, "error: ");
    CHECK(strstr(error, "step-00000001: model-00000-of-00001.h5 is missing") != NULL);
    CHECK(strstr(error, "step-00000002: ") != NULL &&
          strstr(error, "step-00000003: state") != NULL);
    run_shell("rm -r \"$A/run/checkpoints\"/step-*", root, "");
    CHECK_OK(find_checkpoint(&step));
    CHECK_EQUAL(step, -1);
}

static int count_entries(const char *prefix)
{
    char path[128];
    int count = 0;
    snprintf(path, sizeof path, "%s/run/checkpoints", root);
    DIR *dir = opendir(path);
    CHECK(dir != NULL);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        count += strncmp(e->d_name, prefix, strlen(prefix)) == 0;
    }
    closedir(dir);
    return count;
}

/* Damaged folders do not count as kept checkpoints. They are removed when a newer checkpoint is
 * published; valid ones remain. */
static void test_retention(void)
{
    restore_run();
    run_shell(
        "cd \"$A/run/checkpoints\" && printf x >> step-00000003/state-00000.h5 && mkdir "
        "tmp-step-00000009.1 trash-step-00000001 && touch tmp-step-00000009.1/x && cp -r "
        "step-00000003 step-00000006 && printf 'y' | dd of=step-00000006/model-00000-of-00001.h5 "
        "bs=1 seek=99 conv=notrunc 2>/dev/null",
        root, "");
    struct checkpoint *c = open_run(2);
    CHECK_EQUAL(count_entries("tmp-"), 0);
    CHECK_EQUAL(count_entries("trash-"), 0);
    struct checkpoint_info found;
    CHECK_OK(checkpoint_find(c, NULL, &found));
    free(found.recipe_text);
    CHECK_EQUAL(found.state.step, 2);
    save_step(c, 3); /* replaces the damaged one */
    CHECK_EQUAL(count_entries("step-"), 3);
    CHECK_OK(checkpoint_find(c, NULL, &found));
    free(found.recipe_text);
    CHECK_EQUAL(found.state.step, 3);
    save_step(c, 7);
    CHECK_EQUAL(count_entries("step-"), 2);
    CHECK_OK(checkpoint_close(&c));
    c = open_run(1);
    save_step(c, 8);
    CHECK_EQUAL(count_entries("step-"), 1);
    CHECK_EQUAL(count_entries("t"), 0);
    CHECK_OK(checkpoint_archive_newer(c, 7));
    CHECK_EQUAL(count_entries("step-"), 0);
    CHECK_EQUAL(count_entries("old-1"), 1);
    CHECK_OK(checkpoint_close(&c));
}

/* Starts a process that holds the lock until its pipe is closed. */
static pid_t hold_lock(const char *path, int pipes[2])
{
    CHECK(pipe(pipes) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct run_lock *lock = NULL;
        char c = 'x';
        close(pipes[1]);
        _exit(run_lock_acquire(path, 0, &lock) == STATUS_OK && read(pipes[0], &c, 1) == 0 ? 0 : 1);
    }
    close(pipes[0]);
    for (int i = 0; i < 500 && file_size(path) <= 0; i++) {
        usleep(10000);
    }
    return child;
}

static void test_lock(void)
{
    char path[128], holder[64];
    int pipes[2], ended;
    snprintf(path, sizeof path, "%s/lock", root);
    pid_t child = hold_lock(path, pipes);
    struct run_lock *lock = NULL;
    snprintf(holder, sizeof holder, "process %ld", (long)child);
    CHECK_FAILS(run_lock_acquire(path, 0.2, &lock), STATUS_CREATE, holder);
    close(pipes[1]);
    CHECK_OK(run_lock_acquire(path, 5, &lock)); /* succeeds once the holder has ended */
    run_lock_release(&lock);
    CHECK(waitpid(child, &ended, 0) == child && ended == 0);
    CHECK_FAILS(run_lock_acquire("/nowhere/LOCK", 0, &lock), STATUS_CREATE, "/nowhere/LOCK");
}

static bool has_open_file(pid_t process, const char *path)
{
    char name[64], target[256];
    snprintf(name, sizeof name, "/proc/%ld/fd", (long)process);
    DIR *files = opendir(name);
    bool found = false;
    for (struct dirent *f = files != NULL ? readdir(files) : NULL; f != NULL; f = readdir(files)) {
        snprintf(name, sizeof name, "/proc/%ld/fd/%.20s", (long)process, f->d_name);
        ssize_t bytes = readlink(name, target, sizeof target - 1);
        target[bytes > 0 ? bytes : 0] = '\0';
        found = found || strstr(target, path) != NULL;
    }
    if (files != NULL) {
        closedir(files);
    }
    return found;
}

/* A lock file that its holder removes while another job waits for it protects nothing. */
static void test_removed_lock(void)
{
    char path[128];
    int pipes[2], ended;
    struct run_lock *lock = NULL;
    snprintf(path, sizeof path, "%s/removed", root);
    pid_t holder = hold_lock(path, pipes), parent = getpid();
    pid_t remover = fork(); /* the holder ends when this process ends */
    CHECK(remover >= 0);
    if (remover == 0) {
        while (getppid() == parent && !has_open_file(parent, path)) {
            usleep(1000);
        }
        _exit(remove(path) == 0 ? 0 : 1);
    }
    close(pipes[1]);
    CHECK_FAILS(run_lock_acquire(path, 20, &lock), STATUS_CREATE, "removed after a failed start");
    CHECK(waitpid(remover, &ended, 0) == remover && ended == 0);
    CHECK(waitpid(holder, &ended, 0) == holder && ended == 0);
}

static void test_inspect(void)
{
    char folder[128];
    restore_run();
    snprintf(folder, sizeof folder, "%s/run/checkpoints/step-00000003", root);
    CHECK(freopen("/dev/null", "w", stdout) != NULL);
    CHECK_OK(checkpoint_inspect(folder, false));
    CHECK_OK(checkpoint_inspect(folder, true));
    run_shell("printf x >> \"$A/tokenizer/tokenizer.json\"", folder, "");
    CHECK_FAILS(checkpoint_inspect(folder, true), STATUS_CHECKPOINT, "tokenizer/tokenizer.json");
    CHECK_FAILS(checkpoint_inspect("/nowhere", false), STATUS_NO_INPUT, "/nowhere");
}

int main(void)
{
    CHECK_OK(comm_self_create(&world));
    snprintf(root, sizeof root, "test-damage-%ld", (long)getpid());
    make_run();
    test_each_file();
    test_bit_flips();
    test_manifests();
    test_all_damaged();
    test_retention();
    test_lock();
    test_removed_lock();
    test_inspect();
    test_oldest_format();
    CHECK_OK(file_remove_tree(root));
    CHECK_OK(comm_destroy(&world));
    return 0;
}
