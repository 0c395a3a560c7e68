# Rule `folders`: the number of source files and of modules in a folder, and the files in the root.
# Standard input is the list of all paths.
BEGIN {
    FS = "/"
}

/\.(c|h|cu|cuh)$/ && !/^tests\// && NF > 1 {
    file = $NF
    folder = substr($0, 1, length($0) - length(file) - 1)
    files[folder]++
    sub(/(_impl)?\.[a-z]+$/, "", file)
    if (!((folder, file) in module)) {
        module[folder, file] = 1
        modules[folder]++
    }
}

NF == 1 && !/^\.|\.md$|^(LICENSE|CMakeLists\.txt|CMakePresets\.json)$/ {
    print "folders\t" $0 ":1: an unknown file in the root; move it to a folder, or remove it"
}

END {
    for (folder in files) {
        if (files[folder] > 40) {
            print "folders\t" folder "/:1: " files[folder] " source files; at most 40"
        }
        if (folder ~ /^(trainer|datasets)\// && folder != "trainer/cli" && modules[folder] > 20) {
            print "folders\t" folder "/:1: " modules[folder] " modules; at most 20"
        }
    }
}
